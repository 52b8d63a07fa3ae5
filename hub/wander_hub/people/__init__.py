"""People's accounts: passwords, second factors, browser sessions, sign-in and organizations."""
