"""`three_phase_text`: status lines, answer text and a JSON trailer in one plain-text body."""
