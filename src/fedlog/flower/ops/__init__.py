"""What operators start: processes, registration, the demo."""
