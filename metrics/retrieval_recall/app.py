"""The page of the Space: a table to try the metric on."""

from pathlib import Path

import evaluate
from evaluate.utils import launch_gradio_widget

launch_gradio_widget(evaluate.load(str(Path(__file__).parent / "retrieval_recall.py")))
