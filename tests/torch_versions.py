"""What the torch that is installed has, where the least that is allowed has it not."""

from __future__ import annotations

import pytest
import torch

needs_newer_precision = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9 has no fp32_precision"
)
"""The newer of torch's two interfaces to TF32."""
