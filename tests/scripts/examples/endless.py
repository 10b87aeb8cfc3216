"""A loader as YOLOv5 and timm have it: one iterator for all epochs, over a sampler that never ends."""

from torch.utils.data import DataLoader


class Repeated:
    """Batches of indices, epoch after epoch."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    """Iterates once, and hands out an epoch at a time."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)
