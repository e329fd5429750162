"""What vLLM does: one module for each vLLM file that it stands for."""
