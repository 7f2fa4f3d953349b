"""The interface of an engine, in-process vLLM, and one engine shared by several processes."""
