"""Where policies come from: the tiny model, the packaged SmolLM2, any Hugging Face folder."""
