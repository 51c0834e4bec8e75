"""What several tests share: generators of networks, oracles, imitations of cards and clusters."""
