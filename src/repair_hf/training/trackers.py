"""The trackers that `report_to` names: transformers sends them the loss curve, if their packages are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from repair_hf.runtime.options import UserError

# The package to install and the modules of which one must be there, where they are not called as the tracker.
_PACKAGES = {"azure_ml": "azureml-sdk", "comet_ml": "comet-ml", "flyte": "flytekit"}
_MODULES = {
    "azure_ml": ("azureml",),
    "flyte": ("flytekit",),
    "kubeflow": ("transformers",),  # a cluster, which needs no package
    "tensorboard": ("tensorboard", "tensorboardX"),
}


def check_trackers(names: Sequence[str]) -> None:
    """Raise a `UserError` for a tracker that transformers does not know, or whose package is not installed."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise UserError(f"`report_to` {name} is no tracker; known: {', '.join(INTEGRATION_TO_CALLBACK)}, none.")
        if not any(importlib.util.find_spec(module) for module in _MODULES.get(name, (name,))):
            package = _PACKAGES.get(name, name)
            raise UserError(
                f"`report_to` {name} needs the package {package}, which is not installed: `pip install {package}`, "
                "or leave the option out."
            )
