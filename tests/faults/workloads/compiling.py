"""Models that the compiler cannot take, or not whole."""

import os
import signal

import torch
import torch._inductor.config
from torch import nn

from tests.faults.workloads import base
from tests.workloads import tiny

healthy = base.healthy


def no_compiler():
    """A machine without a C++ compiler."""
    torch._inductor.config.cpp.cxx = ("/nonexistent/g++",)
    torch._inductor.config.force_disable_caches = True
    return base.healthy()


class _Breaking(nn.Module):
    """Its way depends on the data, and so does its code: a graph break, and a compilation for each of some steps."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 4)
        self.calls = 0

    def forward(self, features):
        self.calls = min(2, self.calls + 1)
        if features.sum().item() > 0:
            features = features * 2
        return self.inner(features) * self.calls


def breaks_and_recompiles():
    return base.with_loss(tiny.loss, model=_Breaking())


def crashes_the_compiler():
    """A kill while it compiles, as a compiler's bug may."""
    from torch._inductor import compile_fx

    compile_fx.compile_fx = lambda *_, **__: os.kill(os.getpid(), signal.SIGSEGV)
    return base.healthy()
