"""The generator p(y|x,z): prompts, scoring of answers with gradient, and growing them token by token."""
