"""What a model reads beside its task: the repository's instructions, skills, documents and notes."""
