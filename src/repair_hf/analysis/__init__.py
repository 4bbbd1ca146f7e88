"""Tables, figures, pages, and people's judgements."""
