"""The Hugging Face Trainer: a model whose loss is a mean of its own, its best state,
and early stopping.
"""

import os
import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2ForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from coadapt.train.integrations.transformers import CoadaptCallback

os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)


class Rows(Dataset[dict[str, Tensor | int]]):
    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Tensor | int]:
        draw = torch.Generator().manual_seed(self._seed + index)
        ids = torch.randint(1, 20, (8,), generator=draw)
        return {"input_ids": ids, "labels": int(ids[0] > 10)}


elastic = CoadaptCallback(batch_size=12)
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=20,
    n_positions=8,
    n_embd=16,
    n_layer=1,
    n_head=2,
    num_labels=2,
    pad_token_id=0,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)
arguments = {
    "output_dir": tempfile.mkdtemp(),
    "num_train_epochs": 6,
    "learning_rate": 2e-2,
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
}
trainer = Trainer(
    model=GPT2ForSequenceClassification(config),
    args=TrainingArguments(**{**arguments, **elastic.arguments()}),
    train_dataset=Rows(60, 0),
    eval_dataset=Rows(24, 1000),
    callbacks=[elastic, EarlyStoppingCallback(2)],
)
trainer.train(resume_from_checkpoint=elastic.last_checkpoint())
