"""What runs the models: workers with the platform's own engine, and vLLM servers."""
