"""The verb that opens the page, and the page of a recorded journal."""
