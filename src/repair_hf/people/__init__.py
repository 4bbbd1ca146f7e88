"""People in the loop: whom to ask about what, and the page that asks them."""
