"""Run an evaluation: plan, admission, budget, stopping rules, runner."""
