"""One trajectory: protocol, prompts, conversation, what a round sees, tools, the rollout loop."""
