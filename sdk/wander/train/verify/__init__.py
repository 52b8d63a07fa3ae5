"""What a training run's record says, checked: its files among themselves, its first steps and its evaluations
by making them again.
"""

from wander.train.verify.findings import RecordCheck, RecordDifference
from wander.train.verify.repetition import StepDifference, TrainingVerification, verify_training

__all__ = [
    "RecordCheck",
    "RecordDifference",
    "StepDifference",
    "TrainingVerification",
    "verify_training",
]
