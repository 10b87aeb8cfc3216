"""A Trainer of Lightning's."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = TensorDataset(torch.randn(640, 20), torch.randint(0, 5, (640,)))
trainer = lightning.Trainer(max_epochs=200, accelerator="cpu", enable_progress_bar=False)
trainer.fit(Classifier(), DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=64))
