"""The main job, in minutes on two cores: train a small model on the standard library and show what it learned."""
