"""What the client library talks to in its tests."""
