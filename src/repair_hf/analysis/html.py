"""Pages that stand alone: one file, nothing fetched, nothing run that a stranger wrote.

In:  templates of the folder `templates`, values out of captions, file names and answers of models, pictures.
Out: HTML in which every value is escaped and every picture lies inside.

`page.html` is what the pages extend. Its Content-Security-Policy lets a browser fetch nothing from anywhere and run no script, so a
value that slipped through would still do nothing.
"""

from __future__ import annotations

import base64
import io

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from repair_hf.analysis.differences import both_sides, word_diff
from repair_hf.analysis.drawing import CARD, INK, MUTED, PAPER, ROLES, RULE

FEW_COLOURS = 4096  # a drawing: smaller without loss than with it


def environment() -> Environment:
    """Jinja that escapes every value, and knows `data_uri`, `word_diff`, `both_sides` and the colours of the pictures.

    In a template a value is text wherever it stands between tags or in a quoted attribute. Never put one into a script, a style or
    a URL, and never mark one as `safe`. A value that is missing is an error.
    """
    made = Environment(
        loader=PackageLoader("repair_hf.analysis", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"data_uri": data_uri, "word_diff": word_diff, "both_sides": both_sides}
    made.globals |= {"ink": INK, "muted": MUTED, "paper": PAPER, "card": CARD, "rule": RULE, "roles": ROLES}
    return made


def data_uri(image: Image.Image, *, side: int = 320) -> str:
    """A picture as the address of itself.

    Args:
        image: Of any mode.
        side: Pixels of the longest side at most; smaller pictures keep their size.
    """
    shown = image.convert("RGB")
    shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    shown.save(file, "WEBP", lossless=shown.getcolors(FEW_COLOURS) is not None, quality=85)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
