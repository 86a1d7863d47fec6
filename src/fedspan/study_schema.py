"""The keys of a study file, table by table, and the kind of value that each takes."""

from __future__ import annotations

from fedspan.toml_tables import FLAG, NUMBER, TABLE, TEXT, WHOLE, Kind
from fedspan.toml_tables import TEXTS as NAMES

RANK = Kind('a whole number, a fraction between 0 and 1, or "auto"', lambda v: NUMBER.fits(v) or v == "auto")
PREPARATION = {
    "columns": TEXT, "missing": TEXT, "max_missing_fraction": NUMBER, "min_rows": WHOLE, "center": FLAG,
    "scale": FLAG, "normalise": TEXT, "weight_column": TEXT,
}  # fmt: skip
COHORT = {
    "only": NAMES, "fraction": NUMBER, "sample": TEXT, "first": WHOLE, "deadline": NUMBER, "late": TEXT,
    "share": NUMBER,
}  # fmt: skip
BOUND = Kind('a number, "unit" or a table of low and high', lambda v: NUMBER.fits(v) or TEXT.fits(v) or TABLE.fits(v))
NUMBERS = Kind("a list of two numbers", lambda v: isinstance(v, list) and len(v) == 2 and all(map(NUMBER.fits, v)))
RANGE = Kind("a number, or a list of one for each column", lambda v: NUMBER.fits(v) or isinstance(v, list))
PRIVACY = {
    "epsilon": NUMBER, "delta": NUMBER, "row_norm": BOUND, "raw_norm": NUMBER, "site_norm": NUMBER,
    "entry_change": NUMBER, "rows_per_person": WHOLE, "n_public": FLAG, "neighbours": TEXT, "trust": TEXT,
    "calibration": TEXT, "shares": TABLE, "formula": TEXT, "split": NUMBERS, "honest": WHOLE, "arithmetic": TEXT,
    "adaptive_clip": FLAG, "testing_seed": WHOLE,
}  # fmt: skip
SECURE = {
    "threshold": NUMBER, "minimum": WHOLE, "colluding": NUMBER, "dropouts": NUMBER, "security": WHOLE,
    "correctness": WHOLE, "complete_up_to": WHOLE, "repeats": WHOLE,
}  # fmt: skip
TRIPLES = {"user": TEXT, "item": TEXT, "value": TEXT, "vocabulary": NAMES, "unknown": TEXT}
EITHER = Kind("true, false or a table of options", lambda v: FLAG.fits(v) or TABLE.fits(v))
LAYOUT = {"delimiter": TEXT, "decimal": TEXT, "header": FLAG, "triples": EITHER}
"""How files are written: for all in [data], for one in its own table."""
KEYS: dict[str, tuple[str, ...]] = {
    "data": (*PREPARATION, "drop", *LAYOUT),
    "solve": ("estimator", "n_components", "solver", "settings"),
    "participation": tuple(COHORT),
    "privacy": tuple(PRIVACY),
    "secure": tuple(SECURE),
    "run": ("secure", "engine", "speeds", "gossip", "seed", "folder", "record"),
}
"""The keys of each table; [sites] has one for each site."""
SITE_KEYS = ("path", "weight", "drop", *LAYOUT)
STREAM_KEYS = ("path", "weight", "drop", "missing", *(key for key in LAYOUT if key != "triples"))
"""The keys of a site whose rows come as a stream."""
LABELLED_KEYS = ("path", "drop", "test", *(key for key in LAYOUT if key != "triples"))
"""The keys of a site whose rows have labels."""
LABELLED = {
    "data": ("label", "task", "test_fraction"),
    "solve": ("model", "start", "tune", "evaluate_every"),
}
"""The keys that only a study of labelled rows has: see `fedspan.learning_file`."""
HOMES = {key: f"[{table}]" for table, keys in KEYS.items() for key in keys} | {
    key: f'[{table}] of studies with estimator = "representation"' for table, keys in LABELLED.items() for key in keys
}
