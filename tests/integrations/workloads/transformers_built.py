"""What a `build()` that trains with transformers may return: Trainers of small models with random weights."""

import tempfile

import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

TOKENS, LONGEST = 64, 24


def arguments(**changes):
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    return TrainingArguments(output_dir=tempfile.gettempdir(), **quiet, **changes)


class Sentences(Dataset):
    """Lists of tokens of many lengths, with a label."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = 4 + index % (LONGEST - 3)
        return {"input_ids": torch.randint(1, TOKENS, (length,), generator=generator).tolist(), "labels": index % 2}


class Texts(Dataset):
    """Tensors of one length."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(index)
        tokens = torch.randint(1, TOKENS, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Stream(IterableDataset):
    """As many texts as are asked for."""

    def __iter__(self):
        return (Texts()[index] for index in range(64))


def pad(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    rows = [sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples]
    tokens = torch.tensor(rows)
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != 0).long(),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


def classifier():
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=TOKENS,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=LONGEST,
        )
    )


def generator():
    return GPT2LMHeadModel(GPT2Config(vocab_size=TOKENS, n_positions=16, n_embd=16, n_layer=1, n_head=2))


def bert():
    args = arguments(per_device_train_batch_size=4, gradient_accumulation_steps=2, bf16=True, max_grad_norm=0.5)
    return Trainer(classifier(), args, data_collator=pad, train_dataset=Sentences())


def gpt2(kind=Trainer, dataset=None, optimizers=(None, None), callbacks=None, loss=None, model=None, **changes):
    return kind(
        model or generator(),
        arguments(**changes),
        train_dataset=dataset or Texts(),
        optimizers=optimizers,
        callbacks=callbacks,
        compute_loss_func=loss,
    )


def counted_loss(outputs, labels, num_items_in_batch=None):
    losses = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return losses / num_items_in_batch


class Distilling(Trainer):
    """Computes its own loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return 2 * super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)


class Stepping(Trainer):
    """Has a training step of its own."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)


class Watching(TrainerCallback):
    """A callback of the user's."""


def without_data():
    trainer = gpt2()
    trainer.train_dataset = None
    return trainer


def rebalanced():
    return gpt2(train_sampling_strategy="batch_rebalance")
