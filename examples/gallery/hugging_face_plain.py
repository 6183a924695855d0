"""The Hugging Face Trainer: a small GPT-2 learns to count, shuffled, with AdamW and its
linear schedule.
"""

import os
import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)
set_seed(0)


class Counting(Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, index):
        tokens = (index + (1, 3)[index % 2] * torch.arange(12)) % 16
        return {"input_ids": tokens, "labels": tokens}


sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 12, "vocab_size": 16}
config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
model = GPT2LMHeadModel(config)
arguments = {
    "output_dir": tempfile.mkdtemp(),
    "per_device_train_batch_size": 24,
    "save_strategy": "no",
    "num_train_epochs": 4,
    "learning_rate": 1e-3,
    "report_to": "none",
    "use_cpu": True,
    "seed": 0,
    "disable_tqdm": True,
}
trainer = Trainer(
    model=model,
    args=TrainingArguments(**arguments),
    train_dataset=Counting(),
)
trainer.train()
if trainer.is_world_process_zero():
    torch.save(model.state_dict(), sys.argv[1])
