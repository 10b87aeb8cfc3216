"""What a `build()` that trains with Lightning may return: Lightning's own demos, and modules with a twist each."""

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.demos.boring_classes import (
    BoringDataModule,
    BoringDataModuleNoLen,
    BoringModel,
    DemoModel,
    IterableBoringDataModule,
    ManualOptimBoringModel,
    RandomDataset,
)
from lightning.pytorch.demos.lstm import SequenceSampler
from lightning.pytorch.demos.transformer import LightningTransformer
from torch.utils.data import DataLoader, TensorDataset

TOKENS = 64


def boring():
    return BoringModel(), BoringDataModule()


def boring_alone():
    return BoringModel()


def boring_stream():
    return BoringModel(), BoringDataModuleNoLen()


class Transformer(LightningTransformer):
    """The demo, without its download."""

    def prepare_data(self):
        pass


def transformer():
    tokens = torch.randint(0, TOKENS, (64, 9))
    data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    trainer = Trainer(accumulate_grad_batches=2, precision="bf16-mixed", gradient_clip_val=0.5, max_epochs=2)
    return Transformer(vocab_size=TOKENS), DataLoader(data, batch_size=4, shuffle=True), trainer


class Curious(BoringModel):
    """Asks its trainer, its optimizer, its schedule and its logger, as modules do."""

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("loss", loss, prog_bar=True)
        self.log_dict({"epoch": float(self.current_epoch), "rate": self.lr_schedulers().get_last_lr()[0]})
        self.logger.experiment.add_scalar("loss", loss.item(), self.global_step)
        assert self.trainer.training
        assert self.optimizers().param_groups[0]["lr"] > 0
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def curious():
    return Curious(), BoringDataModule()


class Logging(BoringModel):
    """Logs in the middle of its step."""

    def training_step(self, batch, batch_idx):
        output = self(batch)
        self.log("mean", output.mean())
        return self.loss(output)


class Freezing(BoringModel):
    """Has a part that it does not train."""

    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32)).eval()
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.layer(self.frozen(x))


class Augmenting(LightningDataModule):
    """Sets itself up, and changes batches on the device."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(f"setup {stage}")

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.calls.append("augment")
        assert not torch.is_autocast_enabled("cpu")
        return batch + 1

    def train_dataloader(self):
        return DataLoader(
            RandomDataset(32, 64),
            batch_size=8,
            num_workers=2,
            prefetch_factor=3,
            persistent_workers=True,
            drop_last=True,
        )


class Hooked(BoringModel):
    """Does something after each batch."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass


class Adversarial(BoringModel):
    """Has two optimizers."""

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]


class Resting(BoringModel):
    """Has none."""

    def configure_optimizers(self):
        return None


class Iterating(BoringModel):
    """Fetches its batches itself."""

    def training_step(self, dataloader_iter):
        return self.step(next(dataloader_iter)[0])


class Unready(LightningDataModule):
    """Its setup fails."""

    def setup(self, stage):
        raise FileNotFoundError("no scans here")


def grouped():
    data = RandomDataset(32, 64)
    return BoringModel(), DataLoader(data, batch_sampler=SequenceSampler(data, batch_size=8))


def with_trainer(**kwargs):
    return BoringModel(), BoringDataModule(), Trainer(logger=False, enable_checkpointing=False, **kwargs)


MISTAKES = {
    "manual": lambda: (ManualOptimBoringModel(), BoringDataModule()),
    "adversarial": lambda: (Adversarial(), BoringDataModule()),
    "resting": lambda: (Resting(), BoringDataModule()),
    "iterating": lambda: (Iterating(), BoringDataModule()),
    "several_loaders": lambda: (BoringModel(), IterableBoringDataModule()),
    "grouped": grouped,
    "no_loader": DemoModel,
    "unready": lambda: (BoringModel(), Unready()),
    "dataset": lambda: (BoringModel(), RandomDataset(32, 64)),
    "four": lambda: (BoringModel(), BoringDataModule(), None, None),
    "double": lambda: with_trainer(precision="64-true"),
}
