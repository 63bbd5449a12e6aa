"""python -m tests.sdk.features.python --url URL --feature NAME --topic TOPIC [--listener NAME] [--keys FOLDER]."""

from tests.sdk.features.python import positions, sending, sharing
from tests.sdk.features.python.run import main

main({**sending.FEATURES, **sharing.FEATURES, **positions.FEATURES})
