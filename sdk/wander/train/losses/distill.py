"""On-policy distillation with TRL's `DistillationTrainer`: the policy plays, and a teacher rates every token.

Every sampled token is learned from the teacher's distribution over all tokens at its position. Rewards are
reported but do not affect learning. The teacher reads the ids that the policy sampled, so both must have the
same vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from trl import DistillationConfig

from wander.errors import ConfigError
from wander.models.loading import LoadedModel, weights_digest
from wander.train.config import GRPOSettings
from wander.train.internals import DistillationInternals
from wander.train.rollouts.rows import Row
from wander.train.settings.library_arguments import build_library_config
from wander.train.step_trainer import StepTrainer, common_arguments
from wander.train.weights import load_learner
from wander.types import Rollout


def distill_config(settings: GRPOSettings, folder: Path, processes: int = 1) -> DistillationConfig:
    """Translate the settings to TRL's, for each of `processes` processes."""
    own = {**common_arguments(settings, folder, processes), "beta": settings.teacher.divergence}
    return build_library_config(DistillationConfig, own, settings.trl, "trl")


class DistillTrainer(StepTrainer, DistillationInternals):
    """TRL's on-policy distillation on the rollouts of an environment."""

    config = staticmethod(distill_config)
    repeats_rows = False

    def _learns_from(self, row: Row, rollout: Rollout) -> bool:
        return rollout.failure is None and super()._learns_from(row, rollout)

    def hidden_states(
        self, model: Any, ids_GS: torch.Tensor, real_GS: torch.Tensor, kept: int
    ) -> torch.Tensor:
        """Return a model's last hidden state for each token, without computing padding."""
        rows, width = ids_GS.shape
        size = model.get_output_embeddings().weight.shape[1]
        hidden_GSD = torch.zeros((rows + 1, width, size), device=ids_GS.device)
        for bucket in self._buckets(ids_GS, real_GS, width - kept):
            with self.accelerator.autocast():
                hidden_BLD = self.trl_hidden_states(
                    model, bucket.ids_BL, bucket.real_BL.long(), bucket.ids_BL.shape[1] - 1
                )
            hidden_GSD = hidden_GSD.index_put(bucket.target, hidden_BLD[bucket.scored_BL[:, 1:]].float())
        return hidden_GSD[:rows, -kept:]


def load_teacher(settings: GRPOSettings, student: LoadedModel) -> tuple[dict[str, Any], GRPOSettings]:
    """Return the teacher as arguments of TRL's trainer, and the settings with the digest of its weights.

    Without a teacher, the arguments are empty. Raises `ConfigError` for a teacher with a different
    vocabulary, or with other weights than those in the settings.
    """
    section = settings.teacher
    if section.path is None:
        return {}, settings
    teacher = load_learner(settings.model.model_copy(update={"quantization": None}), section.path)
    if settings.model.autocast:  # as accelerate does for the policy
        autocast = torch.autocast(teacher.model.device.type, dtype=torch.bfloat16)
        teacher.model.forward = autocast(teacher.model.forward)
    own, other = student.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    sizes = [side.model.config.get_text_config().vocab_size for side in (student, teacher)]
    if own != other or len(set(sizes)) > 1:
        differing = len(dict(own.items() ^ other.items())) or abs(sizes[0] - sizes[1])
        raise ConfigError(
            f"the teacher `{teacher.name}` and `{student.name}` have different vocabularies: "
            f"{differing} tokens differ",
            hint="use a teacher of the same model family, or learn from its rollouts: `wander model sft`",
        )
    digest = weights_digest(teacher.path) if teacher.path else None
    if section.weights_sha256 not in (None, digest):
        raise ConfigError(
            f"the weights of the teacher `{section.path}` changed since the run started",
            hint="restore them, or start another run",
        )
    pinned = section.model_copy(update={"weights_sha256": digest})
    given = {"teacher_model": teacher.model.requires_grad_(False)}
    return given, settings.model_copy(update={"teacher": pinned})
