"""Stand-in for ``vllm serve`` of a vLLM-Ascend image: strict about its command line, simulated behind its API."""
