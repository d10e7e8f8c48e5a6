"""Programs that run inside the sandbox. The host reads them as text and never imports them."""
