"""The trainer of a script: it leaves what `repair-hf train` leaves in a folder, and pushes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers.trainer_utils import TrainOutput

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.hub.push import Pushed, push_model
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest, finish_stage, open_stage
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train_and_save
from repair_hf.training.trainer import GridTrainer

IN_MEMORY = "a dataset in memory"


class RepairTrainer(GridTrainer):
    """A transformers `Trainer` for dual encoders, on pairs and on records of their repaired failures.

    Logs the objective's terms (`loss_global`, `loss_grid`) and `logit_scale` (after exp) beside the Trainer's `loss`.
    Evaluation is retrieval on pairs: R@K and MRR in both directions, as `eval_i2t_R@1` and so on. If there are pairs
    to evaluate on and `args` leave `eval_strategy` and `save_strategy` off, the model is evaluated after each epoch,
    and the best by `BEST_BY` is kept.

    `train` resumes from the checkpoint that `args.resume_from_checkpoint` names; by default the last, if there is one.

    Args:
        model: A `CLIPModel` or another dual encoder of transformers, which is trained in place; a Hub id or a folder.
        args: The configuration.
        train_dataset: Pairs to train on.
        eval_dataset: Pairs to evaluate on, of a validation split.
        processing_class: The model's processor, by default the one beside the weights; saved with every checkpoint.
        records: What `synthesize` or `load_records` returns, made from failures on `train_dataset`; a `DatasetDict` of
            one split will do. None trains on the pairs alone.
        rows: Rows to train on in place of the grids of `records`: another method's, or grids that are made already.
        objective: The loss; by default the one that `args.negatives` names.
        peft_config: Adapters to train instead of all weights, such as `peft.LoraConfig(...)`; they are saved in place
            of the model. `args.lora_rank` is shorter.
        callbacks: As in the Trainer.
        optimizers: As in the Trainer.

    Raises:
        UserError: If an argument is of a wrong type, or the model cannot be trained so.

    Example:
        >>> trainer = RepairTrainer(model, RepairConfig("tuned"), pairs, validation, processor, records=records)
        >>> trainer.train()
        >>> trainer.evaluate()
        >>> trainer.push_to_hub()
    """

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and save model, processor, loss curve and summary in `args.output_dir`, as `repair-hf train` does.

        `resume_from_checkpoint` is a folder; True or None follows `args`, False starts anew.

        Raises:
            UserError: If the folder holds something else, or a checkpoint is incomplete or of another run.
        """
        folder, options = str(self.args.output_dir), self._options()
        if self.is_world_process_zero():
            open_stage(folder, command="train", options=options)
        run = partial(super().train, resume_from_checkpoint, trial, ignore_keys_for_eval)
        result, summary = train_and_save(self, run)
        if self.is_world_process_zero():
            finish_stage(folder, summary)
        return result

    def push_to_hub(  # type: ignore[override]  # one commit of a finished folder has no message and does not block
        self,
        repo: str | None = None,
        *,
        private: bool | None = None,
        tag: str | None = None,
        license: str | None = None,
        results: Sequence[str | Path] = (),
    ) -> Pushed | None:
        """Push the trained model with its processor and its card, as one commit; see `push_model`.

        Args:
            repo: Id of the model; by default `args.hub_model_id`, or else the name of `args.output_dir`.
            private: Create it as private; by default `args.hub_private_repo`.
            tag: Name of this revision.
            license: License identifier of the Hub.
            results: Folders of `repair-hf evaluate`, for the card.

        Returns:
            Where the push went; None in other processes than the main one.

        Raises:
            UserError: If nothing is trained yet, or the Hub rejects the token, the id or the tag.
            RunStopped: If the Hub cannot be reached or fails; the same call resumes.
        """
        folder, pushed = Path(str(self.args.output_dir)), None
        if self.is_world_process_zero():
            if not (folder / "summary.json").is_file():
                raise UserError(f"{folder} holds no trained model yet; call `train()` first.")
            is_private = bool(self.args.hub_private_repo if private is None else private)
            pushed = push_model(
                folder, repo or repository_of(self.args), private=is_private, tag=tag, results=results, license=license
            )
        self.accelerator.wait_for_everyone()
        return pushed

    def _options(self) -> dict[str, Any]:
        """What the folder records of this run, and the card shows."""
        named = {"output": str(self.args.output_dir), "pairs": IN_MEMORY, "model": self.model.name_or_path or None}
        named |= self.args.recorded(has_records=self.records is not None)
        encoder = DualEncoder(self.model, self.processing_class, device=self.args.device)
        named |= {name: self.run[name] for name in ("global_loss", "peft_config", "objective") if name in self.run}
        named |= {"pairs_fingerprint": self.pairs.fingerprint, "model_digest": self.base_digest or encoder.digest}
        if self.records is not None:
            named |= {"records": IN_MEMORY, "records_digest": digest(self.records["record_id"][:])}
        return named


def repository_of(config: RepairConfig) -> str:
    """Return the repository that a training pushes to."""
    return config.hub_model_id or Path(str(config.output_dir)).name
