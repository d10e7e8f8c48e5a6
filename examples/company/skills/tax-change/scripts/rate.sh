#!/bin/sh
# The percentage of a country, from the company's tax service. RATES_TOKEN is a stand-in: the proxy knows the token.
curl -fsS -H "Authorization: Bearer $RATES_TOKEN" "RATES_URL/rates/$1"
