"""A chat model by id: `client.ChatModel` asks, `journal.Journal` remembers, `cost` counts."""
