"""What happens around the steps: evaluations, stopping, several phases."""
