"""Workers: how they meet, agree, vote, and watch each other."""
