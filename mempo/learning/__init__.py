"""What is computed from trajectories: rewards, scores, advantages, log-probabilities, the loss."""
