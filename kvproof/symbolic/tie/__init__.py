"""The tie: what the relations say is what the model does, operation by operation."""
