"""The decision log's calls: what changed a scheduler, small enough to write down with every plan.

A piece of the log is a msgpack array of entries in the order of the calls. A whole number is the time to which the
clock was advanced, in ns; any other entry is an array that begins with one of the numbers below. Token ids are never
written, only how many there were; of texts only request ids and names. Calls that change nothing, or that failed,
are not written. Whoever replays a piece gives the same calls to a scheduler restored from the checkpoint before it.

    COMMIT       fence                              the plan that plan() gives then, committed
    COMPLETE     fence, device_ns, wall_ns, exposed_delivery_ns, lanes, endings, confidence, survival
    ADMIT        the RequestSpec, its fields by name
    CANCEL, PREEMPT, RESTORED, FINISH               slot, generation
    OFFER        slot, generation, drafts offered from the copy source
    PUBLISHED    fence, then the slot of each of its lanes whose output became visible
    SNAPSHOT     request_id                         its terminal snapshot was published
    POLICY       the coefficients by name
    RESOURCES    free_pages, free_snapshot_rows, page_tokens

`lanes` of COMPLETE: int8 [lanes, 4] in lane order, the columns as in scheduler.layout: emitted tokens, accepted and
offered drafts, how it ended; prompt tokens are consumed as planned. `endings`: the FinishReasons of the lanes that
ended as FINISHED. `confidence` and `survival`: the lanes' rows of the joint confidence (float32) and of survival
(float64), [lanes, draft_capacity], little-endian, or None.
"""

from __future__ import annotations

import sys

import msgspec

(
    COMMIT,
    COMPLETE,
    ADMIT,
    CANCEL,
    PREEMPT,
    RESTORED,
    FINISH,
    OFFER,
    PUBLISHED,
    SNAPSHOT,
    POLICY,
    RESOURCES,
) = range(12)

LITTLE_ENDIAN = sys.byteorder == "little"

encoder = msgspec.msgpack.Encoder()
