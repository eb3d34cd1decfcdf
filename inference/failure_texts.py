"""What a failure of Inference says where Inference itself said nothing (section 3)."""

UNREACHABLE_MESSAGE = "Could not reach Inference: Connection error."
DEADLINE_MESSAGE = "Could not reach Inference: Request timed out."
UNSENT_MESSAGE = "The request could not be sent to Inference."
CUT_MESSAGE = "Inference ended the stream before it was complete."
DEAD_MESSAGE = "The engine that ran this request stopped."
