"""The real vLLM beside the model: its environment, its driver, and the lockstep of both."""
