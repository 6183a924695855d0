"""The live page: what the scheduler does, in a browser, without a build step."""
