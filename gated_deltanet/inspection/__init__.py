"""What a model's memory does on a text: its gates, how far it reaches, its size and rank, and where the model erred."""
