"""Hidden states of a whole target, captured through transformers (the optional extra `capture`).

Only making a dump needs it: an investigation never loads a target whole, and `import eagle3lib` not this room.
"""

from eagle3lib.capture.proof import OwnLogits, check_own_logits, own_logits
from eagle3lib.capture.request import capture
from eagle3lib.capture.states import Response, encode, prefill, recording, respond
from eagle3lib.capture.whole_target import WholeTarget, load_whole_target, recognise

__all__ = [
    "OwnLogits",
    "Response",
    "WholeTarget",
    "capture",
    "check_own_logits",
    "encode",
    "load_whole_target",
    "own_logits",
    "prefill",
    "recognise",
    "recording",
    "respond",
]
