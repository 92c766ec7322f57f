"""Why a recorded plan was chosen: its decision re-executed, compared and put into words."""
