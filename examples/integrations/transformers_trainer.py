"""Hugging Face Trainer with coadapt.train. Alone: `python transformers_trainer.py`.
Nothing is downloaded.

A small GPT-2, made from its configuration, learns to go on with a counting sequence.
Lines marked (coadapt) differ. Expected with the defaults: a mean loss of about 1.2 over
the training (guessing: 2.8).
"""

import argparse
import os

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from coadapt.train.integrations.transformers import CoadaptCallback  # (coadapt)

NUM_SEQUENCES = 480
LENGTH = 12
NUM_TOKENS = 16


class Counting(Dataset[dict[str, Tensor]]):
    """Sequences that count modulo NUM_TOKENS from somewhere, in steps of 1 or 3."""

    def __len__(self) -> int:
        return NUM_SEQUENCES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (index + (1, 3)[index % 2] * torch.arange(LENGTH)) % NUM_TOKENS
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--save", help="where the parameters go in the end")
    args = parser.parse_args()

    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    elastic = CoadaptCallback(batch_size=args.batch_size)  # (coadapt)
    set_seed(0)
    sizes = {
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": LENGTH,
        "vocab_size": NUM_TOKENS,
    }
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0)
    )
    arguments = {"output_dir": "trainer-output", "optim": "sgd", "learning_rate": 0.5}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            **{
                **arguments,
                **elastic.arguments(),
            },  # (coadapt) was **arguments and a batch size
            num_train_epochs=args.epochs,
            report_to="none",
            use_cpu=True,
            seed=0,
            disable_tqdm=True,
        ),
        train_dataset=Counting(),
        callbacks=[elastic],  # (coadapt)
    )
    done = trainer.train(resume_from_checkpoint=elastic.last_checkpoint())  # (coadapt)
    if trainer.is_world_process_zero():
        print(f"final loss {done.training_loss:.4f}")
        if args.save:
            torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
