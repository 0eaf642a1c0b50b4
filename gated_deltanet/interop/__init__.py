"""Our models under other projects' names. Nothing outside this folder knows those names."""
