"""What Looms refuse, as the contract says it (C-520, C-583)."""

from completions.failures import Failure, invalid
from looms.exchange import FileFault
from looms.reads import LoomMissing
from looms.tree import NodeMissing, TreeFault

FAULTS = (LoomMissing, NodeMissing, TreeFault, FileFault)


def refusal(fault: LoomMissing | NodeMissing | TreeFault | FileFault) -> Failure:
    """Return the failure that a fault of `looms` means."""
    if isinstance(fault, LoomMissing):
        return Failure(404, f"There is no Loom {fault} among yours.")
    if isinstance(fault, NodeMissing):
        return Failure(404, f"There is no Node {fault} in this Loom.")
    if isinstance(fault, FileFault):
        return invalid("nodes", str(fault))
    return Failure(409, str(fault), may_retry=False)
