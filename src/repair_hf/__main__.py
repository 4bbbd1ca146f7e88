"""`python -m repair_hf` is `repair-hf`, so that `accelerate launch -m repair_hf train` works."""

from __future__ import annotations

import sys

from repair_hf.cli.main import main

sys.exit(main())
